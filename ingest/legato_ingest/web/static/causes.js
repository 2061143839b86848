// The causes of stalls: name for people and colour, equal to the table of causes in Python (`legato_ingest/causes.py`).
//
// Written by hand from that table; a test compares the two. This module draws nothing.

export const CAUSES = {
  base: { label: 'healthy step', color: '#DDDDDD' },
  scheduling: { label: 'prefill of others', color: '#88CCEE' },
  kv_pressure: { label: 'KV cache pressure', color: '#CC6677' },
  gpu_clock: { label: 'GPU throttling', color: '#882255' },
  host: { label: "engine's host", color: '#DDCC77' },
  front_end: { label: 'front end', color: '#117733' },
  coalescing: { label: 'buffer', color: '#44AA99' },
  connection: { label: 'connection', color: '#AA4499' },
  slow_reader: { label: 'unread socket', color: '#332288' },
  consumer: { label: 'application', color: '#999933' },
  generation: { label: 'generated late', color: '#BBBBBB' },
  delivery: { label: 'delivered late', color: '#999999' },
  unknown: { label: 'unknown', color: '#555555' },
  mixed: { label: 'several causes', color: '#777777' },
  speculation: { label: 'rejected drafts', color: '#E69F00' },
  queue: { label: 'queue', color: '#0072B2' },
  render: { label: 'rendering', color: '#F0E442' },
};

const NOT_JUDGED = { label: 'not judged yet', color: '#888888' };

/** Return {label, color} of a cause; of a stall without a verdict for "" and for a name that this page does not know. */
export function causeOf(name) {
  if (Object.hasOwn(CAUSES, name)) return CAUSES[name];
  return name ? { label: name, color: NOT_JUDGED.color } : NOT_JUDGED;
}
