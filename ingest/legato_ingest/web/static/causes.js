// The causes of stalls: name for people, colour and meaning, equal to the table of causes in Python (`legato_ingest/causes.py`).
//
// Written by hand from that table; a test compares the two. This module draws nothing.

export const CAUSES = {
  base: { label: 'healthy step', color: '#DDDDDD', meaning: 'the healthy step: the time that a step with this number of requests takes on this engine' },
  scheduling: { label: 'prefill of others', color: '#88CCEE', meaning: "another request's prompt was prefilled in the same step" },
  kv_pressure: { label: 'KV cache pressure', color: '#CC6677', meaning: 'the stream was preempted until it was recomputed, or it waited for the recompute of another request' },
  gpu_clock: { label: 'GPU throttling', color: '#882255', meaning: 'the step took longer than its work explains while the driver counted a GPU as throttled' },
  host: { label: "engine's host", color: '#DDCC77', meaning: "the engine's step took longer than its work and its GPU clock explain" },
  front_end: { label: 'front end', color: '#117733', meaning: 'the step was over, and the server did not send its output' },
  coalescing: { label: 'buffer', color: '#44AA99', meaning: 'the stream passed through a buffer: nearly all of it arrived in releases of several chunks' },
  connection: { label: 'connection', color: '#AA4499', meaning: 'the bytes were sent and arrived late, without the pattern of a buffer' },
  slow_reader: { label: 'unread socket', color: '#332288', meaning: "the bytes lay unread in the client's socket" },
  consumer: { label: 'application', color: '#999933', meaning: 'the application held the stream while more chunks had arrived' },
  generation: { label: 'generated late', color: '#BBBBBB', meaning: 'the bytes did not exist yet, and nothing shows why' },
  delivery: { label: 'delivered late', color: '#999999', meaning: 'the bytes existed and arrived late, and nothing shows why' },
  unknown: { label: 'unknown', color: '#555555', meaning: 'the evidence is not sufficient; `missing` lists the absent vantages' },
  mixed: { label: 'several causes', color: '#777777', meaning: 'no cause has half of the time beyond `base`' },
  speculation: { label: 'rejected drafts', color: '#E69F00', meaning: 'the engine accepted fewer drafted tokens than on average; this slows a stream without a gap' },
  queue: { label: 'queue', color: '#0072B2', meaning: 'the request waited for its first step; this delays the first output' },
  render: { label: 'rendering', color: '#F0E442', meaning: "the end user's screen showed the text late; reserved for the vantage `screen`" },
};

const NOT_JUDGED = { label: 'not judged', color: '#888888', meaning: '' };

/** Return {label, color, meaning} of a cause; of a stall without a verdict for "" and for a name that this page does not know. */
export function causeOf(name) {
  if (Object.hasOwn(CAUSES, name)) return CAUSES[name];
  return name ? { ...NOT_JUDGED, label: name } : NOT_JUDGED;
}
