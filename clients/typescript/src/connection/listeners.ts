import { onAbort } from "./abort.js"

/** Callbacks of the application. One that throws disturbs neither the others nor the connection. */
export class Listeners<T> {
  readonly #callbacks = new Set<(value: T) => unknown>()
  readonly #report: (error: unknown) => void

  constructor(report: (error: unknown) => void) {
    this.#report = report
  }

  /** Adds a callback, which may be there already; each call adds one. Returns what removes it. */
  _add(callback: (value: T) => unknown, signal?: AbortSignal): () => void {
    // A function of its own, so that adding the same callback twice and removing it once leaves one.
    const own = (value: T) => callback(value)
    this.#callbacks.add(own)
    const forget = onAbort(signal, () => this.#callbacks.delete(own))
    return () => {
      this.#callbacks.delete(own)
      forget()
    }
  }

  _emit(value: T): void {
    for (const callback of [...this.#callbacks]) call(() => callback(value), this.#report)
  }
}

/** Calls the application. What it throws, or rejects with, is reported. */
export function call(callback: () => unknown, report: (error: unknown) => void): void {
  try {
    const returned = callback()
    if (returned instanceof Promise) returned.catch(report)
  } catch (error) {
    report(error)
  }
}
