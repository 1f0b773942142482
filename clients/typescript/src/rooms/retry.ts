import { RETRY_AFTER_MAX_MS, SETTLED_MS } from "../connection/backoff.js"
import type { TidingsError } from "../connection/errors.js"

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

/** What to do next. */
export type Next =
  | { kind: "wait"; ms: number; /** Shortest wait, if the device wakes up meanwhile. */ floorMs: number; reason: string; error?: unknown; refresh: boolean }
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
  asked(ms: number): void {
    this.#askedMs = Math.min(ms, RETRY_AFTER_MAX_MS)
  }

  /** A stream lasted for a time. */
  streamed(ms: number): void {
    if (ms < SETTLED_MS) return
    this.#failures = 0
    this.#refreshed = false
  }

  after(end: End, renewable: boolean): Next {
    switch (end.kind) {
      case "stop":
        return end
      case "again": {
        const ms = end.failure ? this.#failureWait() : this.#pause()
        return { ...this.#waiting(ms, end.retryAfterMs), reason: end.reason, error: end.error, refresh: false }
      }
      case "gone": {
        // Without a cursor the same request would be refused again.
        const ms = end.hadCursor ? this.#pause() : this.#failureWait()
        return { ...this.#waiting(ms, end.retryAfterMs), reason: "skipped", refresh: false }
      }
      case "unauthorized": {
        if (this.#refreshed || !renewable) return { kind: "stop", reason: "unauthorized", error: end.error }
        this.#refreshed = true
        return { ...this.#waiting(this.#pause()), reason: "token-refused", error: end.error, refresh: true }
      }
    }
  }

  #waiting(ms: number, retryAfterMs = 0): { kind: "wait"; ms: number; floorMs: number } {
    const floorMs = Math.max(PAUSE_MS[0], this.#askedMs, Math.min(retryAfterMs, RETRY_AFTER_MAX_MS))
    return { kind: "wait", ms: Math.max(ms, floorMs), floorMs }
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
