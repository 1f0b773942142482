import { Backoff } from "./backoff.js"
import type { Environment } from "./environment.js"
import { TidingsError } from "./errors.js"
import { pause } from "./within.js"

/** Whether what failed may succeed later: `fetch` throws a `TypeError` when nobody answers. */
export function isPassing(error: unknown): boolean {
  return error instanceof TidingsError ? error.retryable : error instanceof TypeError
}

/** Tries until it succeeds, fails for good, or `again` says that another attempt after a delay is one too many. */
export async function retrying<T>({ clock, random }: Environment, attempt: () => Promise<T>, again: (delayMs: number) => boolean, signal?: AbortSignal): Promise<T> {
  const backoff = new Backoff(random)
  for (;;) {
    try {
      return await attempt()
    } catch (error) {
      const delay = backoff._next((error as Partial<TidingsError>).retryAfterMs)
      if (!isPassing(error) || !again(delay)) throw error
      await pause(clock, delay, signal)
    }
  }
}
