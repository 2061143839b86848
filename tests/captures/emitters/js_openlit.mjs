// OpenLIT for JavaScript, which instruments openai.

import { createRequire } from 'node:module';
import { chatRequest, consume } from './common.mjs';

const require = createRequire(import.meta.url);
const Openlit = require('openlit').default;
Openlit.init({ applicationName: 'capture', otlpEndpoint: process.env.OTEL_EXPORTER_OTLP_ENDPOINT });
const { OpenAI } = require('openai');
const client = new OpenAI({ maxRetries: 0 });
await consume(await client.chat.completions.create(chatRequest()));
await new Promise((resolve) => setTimeout(resolve, 7000));
process.exit(0);
