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
    const signal = init.signal ?? undefined
    const watch = watchSilence(clock, silenceMs, why => {
      end()
      controller.abort(new ConnectionClosedError(why))
    })
    // What has been silent for longer than a heartbeat may be dead when the device wakes up.
    const unwake = wake(() => watch._woken(silenceMs / 2))
    let forget = () => {}
    const end = () => {
      watch._end()
      unwake()
      forget()
    }
    forget = onAbort(signal, () => {
      end()
      controller.abort(signal!.reason)
    })
    try {
      const response = await fetch(input, { ...init, signal: controller.signal })
      const heard = new TransformStream<Uint8Array, Uint8Array>({
        transform(chunk, sink) {
          watch._heard()
          sink.enqueue(chunk)
        },
        flush: end,
      })
      if (!response.body) end()
      const guarded = new Response(response.body?.pipeThrough(heard) ?? null, response)
      // A response that is made has no address, and readers look at it.
      return Object.defineProperty(guarded, "url", { value: response.url })
    } catch (error) {
      end()
      throw controller.signal.aborted ? controller.signal.reason : error
    }
  }
}
