import { Waiters } from "../connection/waiters.js"
import type { Hello, Position } from "./wire.js"

/** What the client shall be subscribed to, whether it is connected or not. */
export interface Intent {
  /** By `subscribe` or `set`, as opposed to by listeners alone. */
  _explicit: boolean
  /** Number of listeners. */
  _listeners: number
  presence?: true | { info: unknown } | undefined
  ttlMs?: number | undefined
}

/** What was heard of a topic. */
export interface Heard {
  /** Last position, for recovery. */
  position?: Position | undefined
  /** The connection on which the subscription was confirmed last. */
  hello?: Hello | undefined
}

/**
 * What is wanted, beside what the server has: `sent` after all frames on their way, `confirmed` after all replies. Knows no
 * network.
 */
export class Intents {
  readonly _wanted = new Map<string, Intent>()
  readonly _sent = new Set<string>()
  readonly _confirmed = new Set<string>()
  /** What was heard of a topic, as long as it is wanted. */
  readonly _heard = new Map<string, Heard>()
  /** Who waits for a topic's subscription. */
  readonly _waiters = new Waiters()

  /** The intent for a topic, made if there is none. */
  _want(topic: string): Intent {
    let intent = this._wanted.get(topic)
    if (!intent) this._wanted.set(topic, (intent = { _explicit: false, _listeners: 0 }))
    return intent
  }

  /** Drops the intent if nobody has it any more. */
  _release(topic: string): void {
    const intent = this._wanted.get(topic)
    if (!intent?._explicit && !intent?._listeners) this._wanted.delete(topic)
  }

  /** Topics to subscribe to, so that the server has what is wanted. */
  get _missing(): string[] {
    return [...this._wanted.keys()].filter(topic => !this._sent.has(topic))
  }

  /** Topics to leave. */
  get _surplus(): string[] {
    return [...this._sent].filter(topic => !this._wanted.has(topic))
  }

  /** The connection is gone, and with it what the server had. */
  _disconnected(): void {
    this._sent.clear()
    this._confirmed.clear()
    for (const topic of this._heard.keys()) this._left(topic)
  }

  _hear(topic: string, news: Heard): void {
    this._heard.set(topic, { ...this._heard.get(topic), ...news })
  }

  _confirm(topic: string): void {
    if (!this._sent.has(topic)) return
    // Re-inserted, so that the order is that of subscription.
    this._confirmed.delete(topic)
    this._confirmed.add(topic)
    this._waiters._resolve(topic)
  }

  /** The server does not have the topic any more, or never had. */
  _left(topic: string): void {
    this._sent.delete(topic)
    this._confirmed.delete(topic)
    if (!this._wanted.has(topic)) this._heard.delete(topic)
  }

  /** The server refuses the topic for good: it is not wanted any more. */
  _refuse(topic: string, error: unknown): void {
    this._wanted.delete(topic)
    this._left(topic)
    this._waiters._reject(error, topic)
  }

  /** Resolves when the server has the topic, on this connection or a later one. */
  async _settled(topic: string): Promise<void> {
    if (!this._confirmed.has(topic)) await this._waiters._wait(topic)
  }
}
