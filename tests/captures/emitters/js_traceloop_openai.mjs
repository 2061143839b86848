// Traceloop's instrumentation of openai for JavaScript (OpenLLMetry-js).

import { OpenAIInstrumentation } from '@traceloop/instrumentation-openai';
import OpenAI from 'openai';
import { chatRequest, consume, openaiClient, tracing } from './common.mjs';

const provider = await tracing();
const instrumentation = new OpenAIInstrumentation({ enrichTokens: false });
instrumentation.setTracerProvider(provider);
const client = await openaiClient(OpenAI);
instrumentation.manuallyInstrument(OpenAI);
await consume(await client.chat.completions.create(chatRequest()));
await provider.shutdown();
