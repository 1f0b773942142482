interface Waiter {
  resolve(): void
  reject(error: unknown): void
}

/** Who waits for something, by its name. */
export class Waiters {
  readonly #waiters = new Map<string, Set<Waiter>>()

  _wait(name: string): Promise<void> {
    return new Promise((resolve, reject) => {
      const there = this.#waiters.get(name) ?? new Set()
      this.#waiters.set(name, there.add({ resolve, reject }))
    })
  }

  _resolve(name: string): void {
    for (const waiter of this.#take(name)) waiter.resolve()
  }

  /** Ends the waiting for one thing, or for all. */
  _reject(error: unknown, name?: string): void {
    for (const each of name === undefined ? [...this.#waiters.keys()] : [name]) {
      for (const waiter of this.#take(each)) waiter.reject(error)
    }
  }

  #take(name: string): Iterable<Waiter> {
    const waiters = this.#waiters.get(name) ?? []
    this.#waiters.delete(name)
    return waiters
  }
}
