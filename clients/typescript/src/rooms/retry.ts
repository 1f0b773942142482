import { RETRY_AFTER_MAX_MS, SETTLED_MS } from "../connection/backoff.js"
import type { HttpError, TidingsError } from "../connection/errors.js"
import type { Step } from "../connection/follower.js"

/** Shortest and longest wait after a stream that ended, or was ended for being slow. */
const PAUSE_MS = [250, 1000] as const
/** Maximum of the first wait after a failure; it doubles. */
const FIRST_MS = 1000
/** Maximum wait after failures. */
const LONGEST_MS = 30_000

/** Events that the reader will not get. */
export interface Missed {
  /** `CursorCompacted`, `FutureCursor`, `compacted` or `reset`. */
  name: string
  floor?: string | undefined
  oldest?: string | undefined
  head?: string | undefined
}

/** How a stream ended. */
export type End =
  /** Another attempt is worthwhile; a failure is waited for longer each time. */
  | { kind: "again"; reason: string; failure: boolean; retryAfterMs?: number | undefined; error?: unknown }
  /** The server refused the cursor. */
  | { kind: "gone"; missed: Missed; hadCursor: boolean; retryAfterMs?: number | undefined }
  /** The server refused the token. */
  | { kind: "unauthorized"; error: TidingsError }
  /** Another attempt is pointless. */
  | { kind: "stop"; reason: string; error?: unknown }

export function again(reason: string, error?: unknown, retryAfterMs?: number): End {
  return { kind: "again", reason, failure: false, retryAfterMs, error }
}

export function failure(reason: string, error?: unknown, retryAfterMs?: number): End {
  return { kind: "again", reason, failure: true, retryAfterMs, error }
}

/** Decides how long to wait before the next stream, and when to stop. Neither waits nor reads the clock. */
export class Retry {
  #failures = 0
  #refreshed = false
  #askedMs = 0
  readonly #random: () => number

  constructor(random: () => number) {
    this.#random = random
  }

  /** The server asks for a shortest wait, by `retry:`. */
  _asked(ms: number): void {
    this.#askedMs = Math.min(ms, RETRY_AFTER_MAX_MS)
  }

  /** A stream lasted for a time. */
  _streamed(ms: number): void {
    if (ms < SETTLED_MS) return
    this.#failures = 0
    this.#refreshed = false
  }

  _after(end: End, renewable: boolean): Step {
    switch (end.kind) {
      case "stop":
        return { why: { reason: end.reason, reconnect: false, error: end.error }, ms: 0, _floorMs: 0 }
      case "again":
        return this.#step(end.failure ? this.#failureWait() : this.#pause(), end.reason, end)
      case "gone":
        // Without a cursor the same request would be refused again.
        return this.#step(end.hadCursor ? this.#pause() : this.#failureWait(), "skipped", end)
      case "unauthorized": {
        const { error } = end
        if (this.#refreshed || !renewable) return this._after({ kind: "stop", reason: "unauthorized", error }, false)
        this.#refreshed = true
        return this.#step(this.#pause(), "token-refused", { error })
      }
    }
  }

  #step(ms: number, reason: string, { retryAfterMs = 0, error }: { retryAfterMs?: number | undefined; error?: unknown }): Step {
    const floorMs = Math.max(PAUSE_MS[0], this.#askedMs, Math.min(retryAfterMs, RETRY_AFTER_MAX_MS))
    const why = { reason, reconnect: true, tokenRefused: reason === "token-refused", code: (error as Partial<HttpError> | undefined)?.status, error }
    return { why, ms: Math.max(ms, floorMs), _floorMs: floorMs }
  }

  #pause(): number {
    return PAUSE_MS[0] + this.#random() * (PAUSE_MS[1] - PAUSE_MS[0])
  }

  /** Between half the maximum and the maximum. */
  #failureWait(): number {
    const longest = Math.min(FIRST_MS * 2 ** Math.min(this.#failures++, 16), LONGEST_MS)
    return longest / 2 + (this.#random() * longest) / 2
  }
}
