// Langfuse for JavaScript: `observeOpenAI`, and its span processor, which posts OTLP as JSON to its own path on LANGFUSE_BASE_URL.

import { observeOpenAI } from '@langfuse/openai';
import { LangfuseSpanProcessor } from '@langfuse/otel';
import { NodeTracerProvider } from '@opentelemetry/sdk-trace-node';
import OpenAI from 'openai';
import { chatRequest, consume, openaiClient } from './common.mjs';

const client = await openaiClient(OpenAI);
const provider = new NodeTracerProvider({ spanProcessors: [new LangfuseSpanProcessor()] });
provider.register();
await consume(await observeOpenAI(client).chat.completions.create(chatRequest()));
await provider.forceFlush();
await provider.shutdown();
