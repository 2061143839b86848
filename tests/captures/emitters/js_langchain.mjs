// LangChain.js with a chat model of OpenAI, under the instrumentation of CAPTURE_INSTRUMENTATION.

import * as CallbackManagerModule from '@langchain/core/callbacks/manager';
import { ChatOpenAI } from '@langchain/openai';
import { MODEL, PROMPT, consume, tracing } from './common.mjs';

const which = process.env.CAPTURE_INSTRUMENTATION;
let provider;
let callbacks = [];
if (which === '@langfuse/langchain') {
  const { LangfuseSpanProcessor } = await import('@langfuse/otel');
  const { NodeTracerProvider } = await import('@opentelemetry/sdk-trace-node');
  const { CallbackHandler } = await import('@langfuse/langchain');
  provider = new NodeTracerProvider({ spanProcessors: [new LangfuseSpanProcessor()] });
  provider.register();
  callbacks = [new CallbackHandler()];
} else {
  provider = await tracing();
  const { LangChainInstrumentation } = await import(which);
  const instrumentation = new LangChainInstrumentation();
  instrumentation.setTracerProvider(provider);
  instrumentation.manuallyInstrument(which.startsWith('@arizeai') ? CallbackManagerModule : { callbackManagerModule: CallbackManagerModule });
}
const model = new ChatOpenAI({ model: MODEL, maxRetries: 0, streamUsage: true, configuration: { baseURL: process.env.OPENAI_BASE_URL } });
try {
  await consume(await model.stream(PROMPT, { callbacks }));
} catch (error) {
  console.log(`failed: ${error}`);
}
await provider.forceFlush();
await provider.shutdown();
