/** Signs that a device may be reachable again: calls back until the returned function is called. */
export type Wake = (woken: () => void) => () => void

/**
 * The signs of a browser: the network is back, the page is visible again, or comes back from the back/forward cache.
 * Other platforms have none; there a clock that has jumped shows that the machine was asleep.
 */
export const systemWake: Wake = woken => {
  const ended = new AbortController()
  if (globalThis.document) {
    const { signal } = ended
    addEventListener("online", woken, { signal })
    addEventListener("pageshow", woken, { signal })
    document.addEventListener("visibilitychange", () => document.hidden || woken(), { signal })
  }
  return () => ended.abort()
}
