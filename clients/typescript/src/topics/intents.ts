import { Waiters } from "../connection/waiters.js"
import type { Position } from "./wire.js"

/** What the client shall be subscribed to, whether it is connected or not. */
export interface Intent {
  readonly topic: string
  /** By `subscribe` or `set`, as opposed to by listeners alone. */
  explicit: boolean
  /** Number of listeners. */
  listeners: number
  presence?: true | { info: unknown } | undefined
  ttlMs?: number | undefined
}

/**
 * What is wanted, beside what the server has: `sent` after all frames on their way, `confirmed` after all replies. Knows no
 * network.
 */
export class Intents {
  readonly wanted = new Map<string, Intent>()
  readonly sent = new Set<string>()
  readonly confirmed = new Set<string>()
  /** Last position heard, for recovery; as long as the topic is wanted. */
  readonly positions = new Map<string, Position>()
  /** Who waits for a topic's subscription. */
  readonly waiters = new Waiters()

  /** The intent for a topic, made if there is none. */
  want(topic: string): Intent {
    let intent = this.wanted.get(topic)
    if (!intent) this.wanted.set(topic, (intent = { topic, explicit: false, listeners: 0 }))
    return intent
  }

  /** Drops the intent if nobody has it any more. */
  release(topic: string): void {
    const intent = this.wanted.get(topic)
    if (!intent?.explicit && !intent?.listeners) this.wanted.delete(topic)
  }

  /** Topics to subscribe to, so that the server has what is wanted. */
  get missing(): string[] {
    return [...this.wanted.keys()].filter(topic => !this.sent.has(topic))
  }

  /** Topics to leave. */
  get surplus(): string[] {
    return [...this.sent].filter(topic => !this.wanted.has(topic))
  }

  /** The connection is gone, and with it what the server had. */
  disconnected(): void {
    this.sent.clear()
    this.confirmed.clear()
    for (const topic of this.positions.keys()) if (!this.wanted.has(topic)) this.positions.delete(topic)
  }

  confirm(topic: string): void {
    if (!this.sent.has(topic)) return
    // Re-inserted, so that the order is that of subscription.
    this.confirmed.delete(topic)
    this.confirmed.add(topic)
    this.waiters.resolve(topic)
  }

  /** The server does not have the topic any more, or never had. */
  left(topic: string): void {
    this.sent.delete(topic)
    this.confirmed.delete(topic)
    if (!this.wanted.has(topic)) this.positions.delete(topic)
  }

  /** The server refuses the topic for good: it is not wanted any more. */
  refuse(topic: string, error: unknown): void {
    this.wanted.delete(topic)
    this.left(topic)
    this.waiters.reject(error, topic)
  }

  /** Resolves when the server has the topic, on this connection or a later one. */
  async settled(topic: string): Promise<void> {
    if (!this.confirmed.has(topic)) await this.waiters.wait(topic)
  }
}
