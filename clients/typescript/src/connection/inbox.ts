import { TidingsError } from "./errors.js"

/** Number of values that wait for a reader of an iterator by default. */
export const INBOX_MAX = 10_000

/** A reader of an iterator was too slow: more values waited than allowed. What it has read is complete. */
export class OverflowError extends TidingsError {
  constructor(max: number) {
    super("OVERFLOW", `more than ${max} values waited for the reader of the iterator`)
  }
}

/** Values on their way to a `for await` loop. Bounded: a reader that is too slow gets an {@link OverflowError}. */
export class Inbox<T> implements AsyncIterableIterator<T> {
  readonly #max: number
  readonly #left: () => void
  #values: T[] = []
  #readers: { resolve(result: IteratorResult<T>): void; reject(error: unknown): void }[] = []
  #ended: { error?: unknown } | undefined

  /** `left` is called once, when nobody reads any more. */
  constructor(left: () => void, max = INBOX_MAX) {
    this.#left = left
    this.#max = max
  }

  push(value: T): void {
    if (this.#ended) return
    const reader = this.#readers.shift()
    if (reader) return reader.resolve({ value, done: false })
    if (this.#values.length >= this.#max) return this.end({ error: new OverflowError(this.#max) })
    this.#values.push(value)
  }

  /** Ends the iterator after what waits has been read, with an error or without. */
  end(how: { error?: unknown } = {}): void {
    if (this.#ended) return
    this.#ended = how
    const readers = this.#readers
    this.#readers = []
    for (const reader of readers) this.#settle(reader)
    this.#left()
  }

  next(): Promise<IteratorResult<T>> {
    if (this.#values.length > 0) return Promise.resolve({ value: this.#values.shift() as T, done: false })
    return new Promise((resolve, reject) => {
      if (this.#ended) this.#settle({ resolve, reject })
      else this.#readers.push({ resolve, reject })
    })
  }

  return(): Promise<IteratorResult<T>> {
    this.#values = []
    this.end()
    return Promise.resolve({ value: undefined, done: true })
  }

  [Symbol.asyncIterator](): this {
    return this
  }

  #settle(reader: { resolve(result: IteratorResult<T>): void; reject(error: unknown): void }): void {
    const ended = this.#ended
    if (ended && "error" in ended) {
      // The error is told once; after that the iterator is at its end.
      this.#ended = {}
      reader.reject(ended.error)
    } else reader.resolve({ value: undefined, done: true })
  }
}
