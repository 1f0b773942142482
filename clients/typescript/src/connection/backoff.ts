/** Bounds of the delays between attempts to connect. */
export interface BackoffOptions {
  /** Upper bound of the first delay; it doubles with each failure. Default: 500 ms. */
  firstMs?: number
  /** Upper bound of every delay. Default: 30 s. */
  maxMs?: number
}

/** Shortest delay before any reconnect. */
export const DELAY_MIN_MS = 50
/** Time that a connection has to last for earlier failures to count no more. */
export const SETTLED_MS = 10_000
/** Longest delay that a server can ask for. */
export const RETRY_AFTER_MAX_MS = 300_000

/**
 * Delays with full jitter: uniformly random between nothing and a bound that doubles, so that clients which were
 * disconnected together do not return together.
 */
export class Backoff {
  #failures = 0
  readonly #firstMs: number
  readonly #maxMs: number
  readonly #random: () => number

  constructor(random: () => number, { firstMs = 500, maxMs = 30_000 }: BackoffOptions = {}) {
    this.#random = random
    this.#firstMs = firstMs
    this.#maxMs = maxMs
  }

  /** Delay before the next attempt, not shorter than what the server asked for. */
  _next(retryAfterMs = 0): number {
    const bound = Math.min(this.#firstMs * 2 ** Math.min(this.#failures++, 30), this.#maxMs)
    return Math.max(this.#random() * bound, Math.min(retryAfterMs, RETRY_AFTER_MAX_MS), DELAY_MIN_MS)
  }

  /** Says how long a connection lasted. One that ended soon counts as a failure, so that no loop is fast. */
  _lasted(ms: number): void {
    if (ms >= SETTLED_MS) this.#failures = 0
  }
}

/** Milliseconds of a `Retry-After` header: seconds or a date. */
export function retryAfterMs(header: string | null, now: number): number | undefined {
  if (header === null) return undefined
  const seconds = Number(header)
  const ms = seconds >= 0 ? seconds * 1000 : Date.parse(header) - now
  return ms >= 0 ? ms : undefined
}
