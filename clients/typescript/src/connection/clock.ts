/** Time and timers, so that tests can hold them still. */
export interface Clock {
  /** Milliseconds since 1970. */
  now(): number
  /** Calls back once after a delay, unless the returned function is called before. */
  after(delayMs: number, callback: () => void): () => void
}

/** The longest delay that `setTimeout` takes; with a longer one it fires at once. */
const DELAY_MAX = 2 ** 31 - 1

/** The clock of the machine. */
export const systemClock: Clock = {
  now: () => Date.now(),
  after(delayMs, callback) {
    const timer = setTimeout(callback, Math.min(delayMs, DELAY_MAX))
    return () => clearTimeout(timer)
  },
}
