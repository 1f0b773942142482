import type { Clock } from "./clock.js"

/** A timer that is late by this much shows that the machine was asleep. */
export const SLEPT_MS = 5_000
/** Interval at which the clock is watched for a jump. */
export const WATCH_MS = 5_000

/** Watches over somebody who should be heard from. */
export interface Watch {
  _heard(): void
  /** The device has woken up: what was silent for longer than this is not trusted. */
  _woken(freshMs: number): void
  _end(): void
}

/** Calls back once when nothing was heard for a time, or the machine was asleep: a connection that is half-open never ends. */
export function watchSilence(clock: Clock, silenceMs: number, lost: (why: string) => void): Watch {
  let heardAt = clock.now()
  let cancel = () => {}
  const watch = () => {
    const at = clock.now()
    const delay = Math.min(WATCH_MS, heardAt + silenceMs - at)
    cancel = clock.after(delay, () => {
      const now = clock.now()
      if (now - at - delay > SLEPT_MS) lost("the machine was asleep")
      else if (now - heardAt >= silenceMs) lost(`the server is silent for ${silenceMs / 1000} s`)
      else watch()
    })
  }
  watch()
  return {
    _heard() {
      heardAt = clock.now()
    },
    _woken(freshMs) {
      if (clock.now() - heardAt <= freshMs) return
      cancel()
      lost("the device has woken up")
    },
    _end: () => cancel(),
  }
}
