// An agent of Mastra, streamed through OpenAI, with Mastra's OTLP exporter.

import { createOpenAI } from '@ai-sdk/openai';
import { Agent } from '@mastra/core/agent';
import { Mastra } from '@mastra/core/mastra';
import { Observability } from '@mastra/observability';
import { OtelExporter } from '@mastra/otel-exporter';
import { MODEL, PROMPT, consume } from './common.mjs';

const provider = { custom: { endpoint: `${process.env.OTEL_EXPORTER_OTLP_ENDPOINT}/v1/traces`, protocol: 'http/protobuf', headers: {} } };
const exporters = [new OtelExporter({ provider })];
const observability = new Observability({ configs: { otel: { serviceName: 'capture', exporters } } });
const agent = new Agent({ id: 'counter', name: 'counter', instructions: 'Count.', model: createOpenAI().chat(MODEL), maxRetries: 0 });
const mastra = new Mastra({ agents: { counter: agent }, observability, logger: false });
const stream = await mastra.getAgent('counter').stream(PROMPT);
await consume(stream.textStream);
await new Promise((resolve) => setTimeout(resolve, 500));
await observability.shutdown();
process.exit(0);
