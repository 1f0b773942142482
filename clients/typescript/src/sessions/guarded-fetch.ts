import type { Environment } from "../connection/environment.js"
import { ConnectionClosedError } from "../connection/errors.js"

/** A timer that is late by this much shows that the machine was asleep. */
const SLEPT_MS = 5_000
const WATCH_MS = 5_000

/**
 * A `fetch` that gives up when nothing comes for a time, or the machine was asleep: a connection that is half-open would be
 * waited on for ever.
 */
export function guardedFetch({ fetch, clock, wake }: Environment, silenceMs: number): typeof fetch {
  return async (input, init = {}) => {
    const controller = new AbortController()
    const outer = init.signal
    const forward = () => controller.abort(outer!.reason)
    if (outer?.aborted) forward()
    outer?.addEventListener("abort", forward, { once: true })
    let heard = clock.now()
    let cancel = () => {}
    const watch = () => {
      const at = clock.now()
      cancel = clock.after(WATCH_MS, () => {
        const now = clock.now()
        if (now - at > WATCH_MS + SLEPT_MS) lost("the machine was asleep")
        else if (now - heard >= silenceMs) lost(`nothing came for ${silenceMs / 1000} s`)
        else watch()
      })
    }
    const lost = (why: string) => {
      end()
      controller.abort(new ConnectionClosedError(why))
    }
    // What has been silent for longer than a heartbeat may be dead when the device wakes up.
    const unwake = wake(() => clock.now() - heard > silenceMs / 2 && lost("the device has woken up and the server was silent"))
    const end = () => {
      cancel()
      unwake()
      outer?.removeEventListener("abort", forward)
    }
    watch()
    try {
      const response = await fetch(input, { ...init, signal: controller.signal })
      if (!response.body) {
        end()
        return response
      }
      const reader = response.body.getReader()
      const body = new ReadableStream<Uint8Array>({
        async pull(sink) {
          try {
            const { done, value } = await reader.read()
            heard = clock.now()
            if (!done) return sink.enqueue(value)
            end()
            sink.close()
          } catch (error) {
            end()
            sink.error(controller.signal.aborted ? controller.signal.reason : error)
          }
        },
        cancel(reason) {
          end()
          return reader.cancel(reason)
        },
      })
      const guarded = new Response(body, { status: response.status, statusText: response.statusText, headers: response.headers })
      // A response that is made has no address, and readers look at it.
      Object.defineProperty(guarded, "url", { value: response.url })
      return guarded
    } catch (error) {
      end()
      throw controller.signal.aborted ? controller.signal.reason : error
    }
  }
}
