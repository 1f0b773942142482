import { systemClock, type Clock } from "./clock.js"
import { systemWake, type Wake } from "./wake.js"

/** A WebSocket constructor: the platform's, or that of the package `ws`. */
export type WebSocketConstructor = new (url: string, protocols?: string | string[]) => WebSocket

/** What a client takes from the platform. Every part can be replaced, by tests or where the platform has none. */
export interface Environment {
  clock: Clock
  /** A random number from 0 up to, not including, 1. */
  random(): number
  /** Undefined where the platform has none: Node 20 without `--experimental-websocket`. */
  WebSocket: WebSocketConstructor | undefined
  fetch: typeof fetch
  wake: Wake
  /** Takes errors that callbacks of the application throw. Default: `reportError`, or the console. */
  report(error: unknown): void
}

/** The platform, with replacements. */
export function environment(replacements: Partial<Environment> = {}): Environment {
  return {
    clock: systemClock,
    random: Math.random,
    WebSocket: globalThis.WebSocket as WebSocketConstructor | undefined,
    // Called as a plain function: `fetch` of a browser refuses any other `this` than the window.
    fetch: (input, init) => globalThis.fetch(input, init),
    wake: systemWake,
    report,
    ...replacements,
  }
}

function report(error: unknown): void {
  const { reportError = console.error } = globalThis
  reportError(error)
}
