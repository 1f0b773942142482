/**
 * Callbacks of the application. One that throws, or whose promise is rejected, is reported and disturbs neither the others
 * nor the connection.
 */
export class Listeners<T> {
  readonly #callbacks = new Set<(value: T) => unknown>()
  readonly #report: (error: unknown) => void

  constructor(report: (error: unknown) => void) {
    this.#report = report
  }

  get size(): number {
    return this.#callbacks.size
  }

  /** Adds a callback, which may be there already; each call adds one. Returns what removes it. */
  add(callback: (value: T) => unknown, signal?: AbortSignal): () => void {
    // A function of its own, so that adding the same callback twice and removing it once leaves one.
    const own = (value: T) => callback(value)
    const remove = () => {
      this.#callbacks.delete(own)
      signal?.removeEventListener("abort", remove)
    }
    if (signal?.aborted) return () => {}
    signal?.addEventListener("abort", remove, { once: true })
    this.#callbacks.add(own)
    return remove
  }

  emit(value: T): void {
    for (const callback of [...this.#callbacks]) call(callback, value, this.#report)
  }
}

/** Calls the application. */
export function call<T>(callback: ((value: T) => unknown) | undefined, value: T, report: (error: unknown) => void): void {
  try {
    const returned = callback?.(value)
    if (returned instanceof Promise) returned.catch(report)
  } catch (error) {
    report(error)
  }
}
