import { call } from "../connection/listeners.js"
import type { Message, PresenceChange } from "./message.js"
import type { Restored } from "./reconciler.js"
import type { MessageDefinition } from "./schema.js"

/** What a listener of a topic is told. */
export interface Handlers<M = Message> {
  message?(message: M): unknown
  /** The subscription is back after a reconnect, with what was missed or without. */
  restored?(restored: Restored): unknown
  /** A member came or went; for listeners with `presence`. */
  presence?(change: PresenceChange): unknown
  /** The subscription was refused or ended by the server, or a message was not valid. */
  error?(error: unknown): unknown
  /** Nothing comes any more: the listener was closed, its subscription has ended, or the client is closed. */
  ended?(why: { error?: unknown }): unknown
}

/** Options of a listener. */
export interface ListenOptions {
  /** Ends the listener. */
  signal?: AbortSignal | undefined
  /** Makes this client a member, with information about it. Fixed by the first listener of the topic. */
  presence?: true | { info: unknown } | undefined
}

/** A listener of a topic. The topic is subscribed to as long as there is one. */
export interface Subscription {
  readonly topic: string
  /** Resolves when the server has the subscription; rejects if it refuses. A rejection that nobody awaits does no harm. */
  readonly ready: Promise<void>
  /** Ends the listener. Nothing is called any more when this returns. */
  close(): void
}

/** The side of a listener that messages come from. */
export interface Listener extends Subscription {
  /** Calls a handler. An error that no handler takes is reported. */
  _tell<K extends keyof Handlers>(name: K, value: Parameters<NonNullable<Handlers[K]>>[0]): void
  /** Tells that nothing comes any more. */
  _end(why: { error?: unknown }): void
}

/** Makes a listener; `left` is called when it ends. */
export function listener(
  topic: string,
  handlers: Handlers,
  definition: MessageDefinition | undefined,
  ready: Promise<void>,
  report: (error: unknown) => void,
  left: () => void,
): Listener {
  let ended = false
  // Messages on their way through the schema, which may take time: their order stays.
  let checking = Promise.resolve()
  const pass = (name: keyof Handlers, value: any) => {
    if (ended) return
    if (name === "error" && !handlers.error) report(value)
    else call(() => handlers[name]?.(value), report)
  }
  const end = (why: { error?: unknown }) => {
    if (ended) return
    pass("ended", why)
    ended = true
    left()
  }
  ready.catch(() => {})
  return {
    topic,
    ready,
    _tell(name, value: unknown) {
      if (name !== "message" || !definition) return pass(name, value)
      const message = value as Message
      if (message.type === definition.type) {
        checking = checking
          .then(() => definition.check(message.payload))
          .then(
            payload => pass(name, { ...message, payload }),
            error => pass("error", error),
          )
      }
    },
    _end: end,
    close: () => end({}),
  }
}
