import { call } from "../connection/listeners.js"
import type { Message, PresenceChange } from "./message.js"
import type { Restored } from "./reconciler.js"
import { validate, type MessageDefinition } from "./schema.js"

/** What a listener of a topic is told. */
export interface Handlers<M = Message> {
  message?(message: M): unknown
  /** The subscription is back after a reconnect, with what was missed or without. */
  restored?(restored: Restored): unknown
  /** A member came or went; for listeners with `presence`. */
  presence?(change: PresenceChange): unknown
  /** The subscription was refused or ended by the server, or a message was not valid. */
  error?(error: unknown): unknown
}

/** Options of a listener. */
export interface ListenOptions {
  /** Ends the listener. */
  signal?: AbortSignal | undefined
  /** Makes this client a member, with information about it. Fixed by the first listener of the topic. */
  presence?: true | { info: unknown } | undefined
}

/** A listener of a topic. The topic is subscribed to as long as there is one. */
export class Subscription {
  readonly topic: string
  /** Resolves when the server has the subscription; rejects if it refuses. A rejection that nobody awaits does no harm. */
  readonly ready: Promise<void>
  readonly #handlers: Handlers
  readonly #definition: MessageDefinition | undefined
  readonly #report: (error: unknown) => void
  readonly #left: (subscription: Subscription) => void
  #ended = false
  /** Messages whose validation takes time, so that the order stays. */
  #checking: Promise<void> | undefined

  constructor(
    topic: string,
    handlers: Handlers,
    definition: MessageDefinition | undefined,
    ready: Promise<void>,
    report: (error: unknown) => void,
    left: (subscription: Subscription) => void,
  ) {
    this.topic = topic
    this.#handlers = handlers
    this.#definition = definition
    this.ready = ready
    this.#report = report
    this.#left = left
    ready.catch(() => {})
  }

  /** Ends the listener. Nothing is called any more when this returns. */
  close(): void {
    if (this.#ended) return
    this.#ended = true
    this.#left(this)
  }

  /** Takes a message of the topic. */
  deliver(message: Message): void {
    const definition = this.#definition
    if (!definition) return this.#call("message", message)
    if (message.type !== definition.type) return
    const take = async () => {
      try {
        this.#call("message", { ...message, payload: await validate(definition, message.payload) })
      } catch (error) {
        this.fail(error)
      }
    }
    if (this.#checking) return this.#queue(take)
    try {
      const checked = validate(definition, message.payload)
      if (!(checked instanceof Promise)) return this.#call("message", { ...message, payload: checked })
      checked.catch(() => {})
      this.#queue(take)
    } catch (error) {
      this.fail(error)
    }
  }

  restored(restored: Restored): void {
    this.#call("restored", restored)
  }

  presence(change: PresenceChange): void {
    this.#call("presence", change)
  }

  /** Tells an error, or reports it where nobody listens for errors. */
  fail(error: unknown): void {
    if (this.#handlers.error) this.#call("error", error)
    else if (!this.#ended) this.#report(error)
  }

  #queue(take: () => Promise<void>): void {
    const checking = (this.#checking ?? Promise.resolve()).then(take).then(() => {
      if (this.#checking === checking) this.#checking = undefined
    })
    this.#checking = checking
  }

  #call<K extends keyof Handlers>(name: K, value: Parameters<NonNullable<Handlers[K]>>[0]): void {
    if (!this.#ended) call(this.#handlers[name]?.bind(this.#handlers) as ((value: unknown) => unknown) | undefined, value, this.#report)
  }
}
