/** Signs that a device may be reachable again: calls back until the returned function is called. */
export type Wake = (woken: () => void) => () => void

/**
 * The signs of a browser: the network is back, the page is visible again, or comes back from the back/forward cache.
 * Other platforms have none; there a clock that has jumped shows that the machine was asleep.
 */
export const systemWake: Wake = woken => {
  if (typeof addEventListener !== "function" || typeof document === "undefined") return () => {}
  const visible = () => {
    if (document.visibilityState === "visible") woken()
  }
  addEventListener("online", woken)
  addEventListener("pageshow", woken)
  document.addEventListener("visibilitychange", visible)
  return () => {
    removeEventListener("online", woken)
    removeEventListener("pageshow", woken)
    document.removeEventListener("visibilitychange", visible)
  }
}
