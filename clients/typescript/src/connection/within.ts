import { onAbort } from "./abort.js"
import type { Clock } from "./clock.js"
import { TimeoutError } from "./errors.js"

/** How long somebody waits for something. */
export interface Patience {
  signal?: AbortSignal | undefined
  timeoutMs?: number | undefined
}

/** What comes of a promise, unless the signal aborts or the time is over before. The promise itself goes on. */
export function within<T>(outcome: Promise<T>, clock: Clock, { signal, timeoutMs }: Patience): Promise<T> {
  return new Promise((resolve, reject) => {
    const forget = onAbort(signal, () => reject(signal!.reason))
    const cancel = timeoutMs === undefined ? forget : clock.after(timeoutMs, () => reject(new TimeoutError(`nothing within ${timeoutMs} ms`)))
    outcome.then(resolve, reject).finally(() => {
      forget()
      cancel()
    })
  })
}

/** Waits; ends early when the signal aborts. `begun` gets a function that lets it end early, too, but not before a time. */
export async function pause(clock: Clock, ms: number, signal?: AbortSignal, begun?: (wake: (floorMs: number) => void) => void): Promise<void> {
  const began = clock.now()
  let forget = () => {}
  await new Promise<void>(resolve => {
    let cancel = clock.after(ms, resolve)
    begun?.(floorMs => {
      cancel()
      cancel = clock.after(Math.max(began + Math.min(floorMs, ms) - clock.now(), 0), resolve)
    })
    forget = onAbort(signal, () => {
      cancel()
      resolve()
    })
  })
  forget()
}
