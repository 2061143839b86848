// Sends one streamed response and one histogram with OpenTelemetry's SDK for Node.
//
// The arguments are the times of the chunks in ms after the start. The exporters read their settings from OpenTelemetry's own environment
// variables. An export that fails, or that the receiver takes in part only, ends the program with status 1.

import { DiagLogLevel, SpanKind, diag } from '@opentelemetry/api';
import { detectResources, envDetector } from '@opentelemetry/resources';
import { MeterProvider, PeriodicExportingMetricReader } from '@opentelemetry/sdk-metrics';
import { BasicTracerProvider, BatchSpanProcessor } from '@opentelemetry/sdk-trace-base';

function fail(...words) {
  console.error(...words);
  process.exitCode = 1;
}

// Said about a server with an address for a name, and about a root certificate without a certificate of the client.
process.noDeprecation = true;
const warn = (text, ...words) => text.startsWith('Client key and certificate must both') || fail(text, ...words);
diag.setLogger({ error: fail, warn, info() {}, debug() {}, verbose() {} }, DiagLogLevel.WARN);

const kind = { grpc: 'grpc', 'http/protobuf': 'proto', 'http/json': 'http' }[process.env.OTEL_EXPORTER_OTLP_PROTOCOL];
const { OTLPTraceExporter } = await import(`@opentelemetry/exporter-trace-otlp-${kind}`);
const { OTLPMetricExporter } = await import(`@opentelemetry/exporter-metrics-otlp-${kind}`);

// A response that began a minute ago, with an event for each chunk.
const chunks = process.argv.slice(2).map(Number);
const began = Date.now() - 60_000;
const resource = detectResources({ detectors: [envDetector] });
const tracers = new BasicTracerProvider({ resource, spanProcessors: [new BatchSpanProcessor(new OTLPTraceExporter())] });
const span = tracers.getTracer('my.application').startSpan('chat model-a', {
  kind: SpanKind.CLIENT,
  startTime: began,
  attributes: {
    'gen_ai.operation.name': 'chat',
    'gen_ai.request.model': 'model-a',
    'gen_ai.response.finish_reasons': ['stop'],
    'gen_ai.usage.output_tokens': chunks.length,
  },
});
for (const after of chunks) span.addEvent('chunk', began + after);
span.end(began + chunks.at(-1));
await tracers.shutdown();

const reader = new PeriodicExportingMetricReader({ exporter: new OTLPMetricExporter() });
const meters = new MeterProvider({ resource, readers: [reader] });
const latency = meters.getMeter('my.application').createHistogram('app.latency', { advice: { explicitBucketBoundaries: [0.1, 1] } });
for (const seconds of [0.05, 0.5, 0.5, 5]) latency.record(seconds);
await meters.shutdown();
