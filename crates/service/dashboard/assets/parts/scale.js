// Calculations for graphs: rounded numbers for an axis, and runs of samples that a line joins.

const STEPS = [1, 2, 2.5, 5, 10];

/**
 * Rounded values for an axis from 0 to at least `highest`.
 * @param {number} highest
 * @param {number} [lines] approximate number of lines
 * @returns {number[]}
 */
export function axisValues(highest, lines = 4) {
  const rough = Math.max(highest, 1e-9) / lines;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = STEPS.find((candidate) => candidate * power >= rough) * power;
  const values = [];
  for (let index = 0; index === 0 || values.at(-1) < highest; index += 1) values.push(index * step);
  return values;
}

/**
 * Runs of samples without a gap: each sample has a value, and consecutive samples are at most `gapS` seconds apart.
 * @param {{atS: number}[]} samples oldest first
 * @param {string} key
 * @param {number} gapS
 * @returns {{atS: number, value: number}[][]}
 */
export function runs(samples, key, gapS) {
  const result = [];
  let run = [];
  const close = () => {
    if (run.length > 0) result.push(run);
    run = [];
  };
  for (const sample of samples) {
    if (sample[key] === null || (run.length > 0 && sample.atS - run.at(-1).atS > gapS)) close();
    if (sample[key] !== null) run.push({ atS: sample.atS, value: sample[key] });
  }
  close();
  return result;
}

/**
 * The time spans that no run covers.
 * @param {{atS: number}[][]} coveringRuns
 * @param {number} fromS
 * @param {number} toS
 * @param {number} gapS spans up to this length are not gaps, seconds
 * @returns {[number, number][]}
 */
export function gaps(coveringRuns, fromS, toS, gapS) {
  const edges = coveringRuns.filter((run) => run.at(-1).atS >= fromS).map((run) => [Math.max(run[0].atS, fromS), run.at(-1).atS]);
  const result = [];
  let coveredToS = fromS;
  for (const [start, end] of [...edges, [toS, toS]]) {
    if (start - coveredToS > gapS) result.push([coveredToS, start]);
    coveredToS = Math.max(coveredToS, end);
  }
  return result;
}
