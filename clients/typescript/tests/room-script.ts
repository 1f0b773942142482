import { Rooms, type FollowOptions, type RoomsOptions } from "../src/rooms/index.js"
import { FakeNetwork, turn } from "./fakes.js"

/** A server whose answers to `GET …/events` are written by the test. */
export class Script {
  readonly network = new FakeNetwork()
  readonly requests: { url: URL; init: RequestInit }[] = []
  readonly told: unknown[] = []
  #answers: ((response: Response | Error) => void)[] = []
  #body: ReadableStreamDefaultController<Uint8Array> | undefined

  constructor() {
    this.network.random = 0
    this.network.answer = (url, init = {}) => {
      this.requests.push({ url: new URL(url), init })
      return new Promise((resolve, reject) => {
        init.signal?.addEventListener("abort", () => reject(new DOMException("aborted", "AbortError")))
        this.#answers.push(answer => (answer instanceof Error ? reject(answer) : resolve(answer)))
      })
    }
  }

  follow(options: FollowOptions = {}, rooms: Partial<RoomsOptions> = {}) {
    const client = new Rooms({ server: "https://tidings.example", project: "p", environment: this.network.environment, ...rooms })
    return client.room("r").follow(
      {
        event: event => void this.told.push(event.cursor),
        missed: ({ name }) => void this.told.push(`missed ${name}`),
        info: ({ reason }) => void this.told.push(`info ${reason}`),
      },
      options,
    )
  }

  get cursor() {
    return this.requests.at(-1)?.url.searchParams.get("cursor")
  }

  async refuse(status: number, body: object = {}, headers: Record<string, string> = {}) {
    await turn()
    this.#answers.shift()!(new Response(JSON.stringify(body), { status, headers }))
    await turn()
  }

  async unreachable() {
    await turn()
    this.#answers.shift()!(new TypeError("no route"))
    await turn()
  }

  async open(start?: string) {
    await turn()
    const body = new ReadableStream<Uint8Array>({ start: controller => void (this.#body = controller) })
    this.#answers.shift()!(new Response(body, { headers: { "content-type": "text/event-stream", ...(start && { "last-event-id": start }) } }))
    await turn()
  }

  async write(text: string) {
    this.#body!.enqueue(new TextEncoder().encode(text))
    await turn()
  }

  message(cursor: string) {
    return this.write(`id: ${cursor}\nevent: messageEvent\ndata: {"cursor":"${cursor}","convoId":"r","emittedAt":"t","payload":{}}\n\n`)
  }

  info(reason: string, cursor: string, detail: object = {}) {
    return this.write(`event: infoEvent\ndata: ${JSON.stringify({ cursor, reason, detail })}\n\n`)
  }

  async end() {
    this.#body!.close()
    await turn()
  }

  async cut() {
    this.#body!.error(new Error("reset"))
    await turn()
  }
}
