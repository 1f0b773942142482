import { TidingsError } from "./errors.js"

/** Number of values that wait for a reader of an iterator by default. */
export const INBOX_MAX = 10_000

/** Values on their way to a `for await` loop. Bounded: a reader that is too slow gets an error with the code `OVERFLOW`. */
export class Inbox<T> implements AsyncIterableIterator<T> {
  readonly #max: number
  readonly #left: () => void
  #values: T[] = []
  #readers: ((result: IteratorResult<T> | Promise<never>) => void)[] = []
  #ended: { error?: unknown } | undefined

  /** `left` is called once, when nobody reads any more. */
  constructor(left: () => void, max = INBOX_MAX) {
    this.#left = left
    this.#max = max
  }

  push(value: T): void {
    if (this.#ended) return
    const reader = this.#readers.shift()
    if (reader) reader({ value, done: false })
    else if (this.#values.length < this.#max) this.#values.push(value)
    else this.end({ error: new TidingsError(`more than ${this.#max} values wait`, { code: "OVERFLOW" }) })
  }

  /** Ends the iterator after what waits has been read, with an error or without. */
  end(how: { error?: unknown } = {}): void {
    if (this.#ended) return
    this.#ended = how
    for (const reader of this.#readers) reader(this.#last())
    this.#left()
  }

  next(): Promise<IteratorResult<T>> {
    return new Promise(resolve => {
      if (this.#values.length > 0) resolve({ value: this.#values.shift()!, done: false })
      else if (this.#ended) resolve(this.#last())
      else this.#readers.push(resolve)
    })
  }

  async return(): Promise<IteratorResult<T>> {
    this.#values = []
    this.end()
    return { value: undefined, done: true }
  }

  [Symbol.asyncIterator](): this {
    return this
  }

  /** The error is told once; after that the iterator is at its end. */
  #last(): IteratorResult<T> | Promise<never> {
    const how = this.#ended!
    this.#ended = {}
    return "error" in how ? Promise.reject(how.error) : { value: undefined, done: true }
  }
}
