/** A clock, a network and a server that do only what a test says. */
import type { Clock } from "../src/connection/clock.js"
import type { Environment } from "../src/connection/environment.js"

/** A clock that moves only when told. */
export class ManualClock implements Clock {
  #now = 1_763_294_400_000
  #timers: { at: number; callback: () => void }[] = []

  now(): number {
    return this.#now
  }

  after(delayMs: number, callback: () => void): () => void {
    const timer = { at: this.#now + delayMs, callback }
    this.#timers.push(timer)
    return () => void (this.#timers = this.#timers.filter(each => each !== timer))
  }

  /** Moves on; timers that are due ring in their order, each after what the one before has caused. */
  async advance(ms: number): Promise<void> {
    const end = this.#now + ms
    await turn()
    for (;;) {
      const due = this.#timers.filter(timer => timer.at <= end).sort((a, b) => a.at - b.at)[0]
      if (!due) break
      this.#timers = this.#timers.filter(each => each !== due)
      this.#now = Math.max(this.#now, due.at)
      due.callback()
      await turn()
    }
    this.#now = end
    await turn()
  }

  /** Jumps as the clock of a machine that slept: timers ring late, all at once. */
  async sleep(ms: number): Promise<void> {
    this.#now += ms
    await this.advance(0)
  }

  /** Delay until the next timer rings. */
  get next(): number | undefined {
    const times = this.#timers.map(timer => timer.at - this.#now)
    return times.length > 0 ? Math.min(...times) : undefined
  }
}

/** Lets everything run that waits for nothing but its turn. */
export async function turn(): Promise<void> {
  for (let count = 0; count < 5; count++) await new Promise(resolve => setImmediate(resolve))
}

/** The client's side of a connection whose other side is the test. */
export class FakeSocket {
  readyState = 0
  binaryType = "blob"
  bufferedAmount = 0
  sent: (string | Uint8Array)[] = []
  /** Close code that the client has sent. */
  closedWith: number | undefined
  onopen: (() => void) | null = null
  onmessage: ((event: { data: unknown }) => void) | null = null
  onclose: ((event: { code: number; reason: string }) => void) | null = null
  onerror: (() => void) | null = null

  constructor(
    readonly url: string,
    readonly network: FakeNetwork,
  ) {
    network.sockets.push(this)
  }

  send(data: string | Uint8Array): void {
    this.sent.push(data)
  }

  close(code?: number): void {
    this.closedWith = code
    this.readyState = 3
  }

  /** The frames that the client has sent since the last call, parsed. */
  frames(): { type: string; meta?: Record<string, unknown>; payload?: any }[] {
    return this.sent.splice(0).map(data => JSON.parse(data as string))
  }

  async opens(): Promise<void> {
    this.readyState = 1
    this.onopen?.()
    await turn()
  }

  async says(...frames: unknown[]): Promise<void> {
    for (const frame of frames) {
      this.onmessage?.({ data: typeof frame === "string" || frame instanceof ArrayBuffer ? frame : JSON.stringify(frame) })
    }
    await turn()
  }

  async closes(code = 1006, reason = ""): Promise<void> {
    this.readyState = 3
    this.onclose?.({ code, reason })
    await turn()
  }
}

/** Everything that a client takes from the platform. */
export class FakeNetwork {
  readonly clock = new ManualClock()
  readonly sockets: FakeSocket[] = []
  readonly reported: unknown[] = []
  /** What `Math.random` gives. */
  random = 1 - Number.EPSILON
  readonly #wakers = new Set<() => void>()
  /** Answers plain requests. By default nobody answers. */
  answer: (url: string, init?: RequestInit) => Promise<Response> = () => Promise.reject(new TypeError("unreachable"))

  get environment(): Environment {
    const network = this
    return {
      clock: this.clock,
      random: () => this.random,
      WebSocket: class {
        constructor(url: string) {
          return new FakeSocket(url, network) as never
        }
      } as never,
      fetch: ((url: string, init?: RequestInit) => this.answer(url, init)) as typeof fetch,
      wake: woken => {
        // A function of its own, as the same one may come twice.
        const own = () => woken()
        this.#wakers.add(own)
        return () => this.#wakers.delete(own)
      },
      report: error => void this.reported.push(error),
    }
  }

  /** The device wakes up. */
  woken(): void {
    for (const waker of [...this.#wakers]) waker()
  }

  /** The latest socket. */
  get socket(): FakeSocket {
    const socket = this.sockets.at(-1)
    if (!socket) throw new Error("the client has not connected")
    return socket
  }
}

export function hello(more: object = {}) {
  return {
    type: "$hello",
    payload: {
      clientId: "c_1",
      memberId: "m_1",
      session: "s_1",
      project: "shop",
      user: "alice",
      expiresAt: null,
      heartbeatMs: 25_000,
      limits: { topicLength: 128, topicsPerConnection: 1000, topicsPerRequest: 1000, frameBytes: 1_114_112, payloadBytes: 1_048_576 },
      ...more,
    },
  }
}

export function reply(to: { meta?: Record<string, unknown> } | undefined, payload: unknown = {}) {
  return { type: "$reply", meta: { correlationId: to?.meta?.correlationId }, payload }
}

export function refuse(to: { meta?: Record<string, unknown> } | undefined, code: string, details?: object, retryable = false) {
  return { type: "RPC_ERROR", meta: { correlationId: to?.meta?.correlationId }, payload: { code, message: code, retryable, details } }
}

/** A clock that goes faster than the machine's: waits and timeouts are as the program says, and take a fraction of the time. */
export function fastClock(factor: number): Clock {
  const began = Date.now()
  return {
    now: () => began + (Date.now() - began) * factor,
    after(delayMs, callback) {
      const timer = setTimeout(callback, delayMs / factor)
      return () => clearTimeout(timer)
    },
  }
}

/** A source of randomness that gives the same numbers for the same seed. */
export function seeded(seed: number): () => number {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0
    let mixed = Math.imul(seed ^ (seed >>> 15), 1 | seed)
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32
  }
}
