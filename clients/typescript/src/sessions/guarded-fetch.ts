import { onAbort } from "../connection/abort.js"
import type { Environment } from "../connection/environment.js"
import { ConnectionClosedError } from "../connection/errors.js"
import { watchSilence } from "../connection/silence.js"

/**
 * A `fetch` that gives up when nothing comes for a time, or the machine was asleep: a connection that is half-open would be
 * waited on for ever.
 */
export function guardedFetch({ fetch, clock, wake }: Environment, silenceMs: number): typeof fetch {
  return async (input, init = {}) => {
    const controller = new AbortController()
    const { signal } = init
    const forget = onAbort(signal ?? undefined, () => controller.abort(signal!.reason))
    const watch = watchSilence(clock, silenceMs, why => {
      end()
      controller.abort(new ConnectionClosedError(why))
    })
    // What has been silent for longer than a heartbeat may be dead when the device wakes up.
    const unwake = wake(() => watch.woken(silenceMs / 2))
    const end = () => {
      watch.end()
      unwake()
      forget()
    }
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
            watch.heard()
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
