/** Part of a stream of server-sent events. */
export type SseItem =
  | { kind: "event"; name: string; data: string }
  /** An id without data, which moves the last event id and dispatches nothing. */
  | { kind: "id"; id: string }
  /** The reconnection time has changed. */
  | { kind: "retry"; ms: number }

/** Longest event, in characters. The server's default limit for a payload is 16 KiB. */
export const EVENT_MAX = 1 << 20

/** Parses server-sent events by the algorithm of the HTML standard, from text in pieces of any size. */
export class SseParser {
  #rest = ""
  #name = ""
  #data: string[] = []
  #size = 0
  #id: string | undefined
  #first = true
  #afterCr = false

  /** Takes a piece; returns what is complete. Throws if an event is too long. */
  feed(text: string): SseItem[] {
    const items: SseItem[] = []
    if (this.#first && text.length > 0) {
      this.#first = false
      if (text.startsWith("\uFEFF")) text = text.slice(1)
    }
    // A line feed after a carriage return at the end of the last piece belongs to it.
    if (this.#afterCr && text.startsWith("\n")) text = text.slice(1)
    if (text.length > 0) this.#afterCr = text.endsWith("\r")
    const lines = (this.#rest + text).split(/\r\n|\n|\r/)
    this.#rest = lines.pop()!
    for (const line of lines) this.#line(line, items)
    if (this.#rest.length + this.#size > EVENT_MAX) throw new RangeError(`an event has more than ${EVENT_MAX} characters`)
    return items
  }

  #line(line: string, items: SseItem[]): void {
    if (line === "") return this.#dispatch(items)
    const colon = line.indexOf(":")
    if (colon === 0) return
    const field = colon < 0 ? line : line.slice(0, colon)
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "")
    if (field === "event") this.#name = value
    else if (field === "data") {
      this.#size += value.length
      if (this.#size > EVENT_MAX) throw new RangeError(`an event has more than ${EVENT_MAX} characters`)
      this.#data.push(value)
    } else if (field === "id" && !value.includes("\0")) this.#id = value
    else if (field === "retry" && /^\d+$/.test(value)) items.push({ kind: "retry", ms: Number(value) })
  }

  #dispatch(items: SseItem[]): void {
    if (this.#data.length > 0) items.push({ kind: "event", name: this.#name || "message", data: this.#data.join("\n") })
    else if (this.#id !== undefined) items.push({ kind: "id", id: this.#id })
    this.#name = ""
    this.#data = []
    this.#size = 0
    this.#id = undefined
  }
}
