// The view of the server as typed arrays, with a binary search for the part that is visible.
//
// A column arrives as a list, as one number for all chunks, or as null. This module draws nothing and asks for nothing.

export const KINDS = ['role', 'text', 'reasoning', 'tool', 'usage', 'heartbeat', 'retract', 'done'];
const CONTENT_LAST = 3;

export const isContent = (kind) => kind >= 1 && kind <= CONTENT_LAST;

/** Return the index of the first element that is not below `value`. `values` ascends. */
export function lowerBound(values, value, from = 0) {
  let low = from;
  let high = values.length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (values[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Return the index of the last element that is not above `value`, or -1. */
export const lastNotAbove = (values, value) => lowerBound(values, value + 1e-9) - 1;

function column(values, length, Kind) {
  if (values === null || values === undefined) return null;
  return typeof values === 'number' ? new Kind(length).fill(values) : Kind.from(values);
}

function sums(differences) {
  const out = new Float64Array(differences.length);
  let sum = 0;
  for (let place = 0; place < out.length; place++) out[place] = sum += differences[place];
  return out;
}

function vantageOf(raw) {
  const at = sums(raw.dt_us);
  const length = at.length;
  return {
    ...raw,
    at,
    kind: column(raw.kind, length, Uint8Array) || new Uint8Array(length).fill(1),
    bytes: column(raw.bytes, length, Float64Array),
    tokens: column(raw.tokens, length, Float64Array),
    hold: column(raw.hold_us, length, Float64Array),
    end: raw.offset_us + raw.duration_us,
  };
}

const WORK = ['decode_requests', 'prefill_tokens', 'recompute_tokens', 'draft_tokens'];
const STEP_COLUMNS = [...WORK, 'decode_tokens', 'accepted_tokens', 'running', 'waiting', 'preempted', 'kv_used_ppm', 'step', 'late_us'];

/** The kinds of work of a step, in the order in which they are stacked. */
export const WORK_NAMES = ['decode', 'prefill', 'recompute', 'verification'];

function stepsOf(raw) {
  if (!raw) return null;
  const start = Float64Array.from(raw.start_us);
  const length = start.length;
  const steps = { length, is_cut: raw.is_cut, start, duration: Float64Array.from(raw.duration_us), end: new Float64Array(length) };
  for (let step = 0; step < length; step++) steps.end[step] = start[step] + steps.duration[step];
  for (const name of STEP_COLUMNS) steps[name] = column(raw[name], length, Float64Array);
  steps.shares = sharesOf(steps, WORK.map((name) => steps[name]));
  return steps;
}

// The share of each kind of work in the tokens of each step: four numbers a step. A step without any known work counts as decode.
function sharesOf(steps, columns) {
  const shares = new Float32Array(4 * steps.length);
  for (let step = 0; step < steps.length; step++) {
    let sum = 0;
    for (const values of columns) sum += values ? Math.max(values[step], 0) : 0;
    for (let work = 0; work < 4; work++) {
      const tokens = columns[work] ? Math.max(columns[work][step], 0) : 0;
      shares[4 * step + work] = sum > 0 ? tokens / sum : Number(work === 0);
    }
  }
  return shares;
}

const seriesOf = ({ series }) =>
  series.map((one) => ({ name: one.name, at: Float64Array.from(one.at_us), value: Float64Array.from(one.value) }));

/** Return the model of a view of `/api/streams/{identity}`: times in µs since the start of the axis. */
export function modelOf(view) {
  const vantages = view.vantages.map(vantageOf);
  return {
    view,
    end: Math.max(view.duration_us, 1),
    vantages,
    felt: vantages[view.felt],
    stalls: view.stalls,
    engine: { ...view.engine, steps: stepsOf(view.engine.steps) },
    gpu_clock: { ...view.gpu_clock, series: seriesOf(view.gpu_clock) },
    host_cpu: { ...view.host_cpu, series: seriesOf(view.host_cpu) },
  };
}

/** Return the number of the longest stall, or -1. */
export function longestStall(stalls) {
  return stalls.reduce((best, stall, number) => (best < 0 || stall.gap_us > stalls[best].gap_us ? number : best), -1);
}
