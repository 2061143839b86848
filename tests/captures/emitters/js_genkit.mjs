// Google's Genkit, streamed through its plug-in for OpenAI, with its own spans.

import { openAI } from '@genkit-ai/compat-oai/openai';
import { OTLPTraceExporter } from '@opentelemetry/exporter-trace-otlp-proto';
import { BatchSpanProcessor } from '@opentelemetry/sdk-trace-node';
import { genkit } from 'genkit';
import { enableTelemetry, flushTracing } from 'genkit/tracing';
import { MODEL, PROMPT, consume, report } from './common.mjs';

await enableTelemetry({ spanProcessors: [new BatchSpanProcessor(new OTLPTraceExporter())] });
const ai = genkit({ plugins: [openAI({ apiKey: 'none', baseURL: process.env.OPENAI_BASE_URL, maxRetries: 0 })] });
const { stream, response } = ai.generateStream({ model: openAI.model(MODEL), prompt: PROMPT });
response.catch(report);
await consume(stream);
if (process.argv[2] !== 'break') await response.catch(report);
await flushTracing();
process.exit(0);
