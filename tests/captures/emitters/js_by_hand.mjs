// Spans by hand with OpenTelemetry's SDK for Node: an event for each chunk. OTEL_EXPORTER_OTLP_PROTOCOL selects the exporter.

import { SpanKind, SpanStatusCode, trace } from '@opentelemetry/api';
import OpenAI from 'openai';
import { BREAK_AFTER, MODEL, SCENARIO, chatRequest, openaiClient, report, tracing } from './common.mjs';

const provider = await tracing();
const client = await openaiClient(OpenAI);
const tracer = trace.getTracer('my.application', '1.0');

await tracer.startActiveSpan(`chat ${MODEL}`, { kind: SpanKind.CLIENT }, async (span) => {
  span.setAttributes({ 'gen_ai.operation.name': 'chat', 'gen_ai.provider.name': 'openai', 'gen_ai.request.stream': true });
  span.setAttribute('gen_ai.request.model', MODEL);
  let index = 0;
  try {
    for await (const chunk of await client.chat.completions.create(chatRequest())) {
      span.addEvent('chunk', { index });
      index += 1;
      span.setAttributes({ 'gen_ai.response.id': chunk.id, 'gen_ai.response.model': chunk.model });
      const finish = chunk.choices[0]?.finish_reason;
      if (finish) span.setAttribute('gen_ai.response.finish_reasons', [finish]);
      if (chunk.usage) {
        span.setAttribute('gen_ai.usage.input_tokens', chunk.usage.prompt_tokens);
        span.setAttribute('gen_ai.usage.output_tokens', chunk.usage.completion_tokens);
      }
      if (SCENARIO === 'break' && index === BREAK_AFTER) break;
    }
  } catch (error) {
    span.recordException(error);
    span.setStatus({ code: SpanStatusCode.ERROR, message: error.message });
    report(error);
  } finally {
    span.end();
  }
});
await provider.shutdown();
