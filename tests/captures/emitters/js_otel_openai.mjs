// The instrumentation of openai of the OpenTelemetry project. It patches the package when it is loaded by `require`.

import { createRequire } from 'node:module';
import { registerInstrumentations } from '@opentelemetry/instrumentation';
import { chatRequest, consume, tracing } from './common.mjs';

const require = createRequire(import.meta.url);
const provider = await tracing();
const { OpenAIInstrumentation } = require('@opentelemetry/instrumentation-openai');
registerInstrumentations({ instrumentations: [new OpenAIInstrumentation()] });
const { OpenAI } = require('openai');
const client = new OpenAI({ maxRetries: 0 });
await consume(await client.chat.completions.create(chatRequest()));
await provider.shutdown();
