import { useCallback, useEffect, useState } from "react"
import type { Member, Message, Outgoing, PublishOptions, PublishResult } from "../topics/message.js"
import type { Restored } from "../topics/reconciler.js"
import type { InputOf, MessageDefinition, OutputOf, StandardSchema } from "../topics/schema.js"
import type { Topics } from "../topics/topics.js"
import { useLatest } from "./latest.js"

export interface UseTopicOptions<M> {
  /** Number of messages that are kept. Default: 100. */
  max?: number
  /** Called with each message, also of those that are not kept. */
  onMessage?(message: M): unknown
  /** Called when the subscription is back after a reconnect. */
  onRestored?(restored: Restored): unknown
}

export interface UsedTopic<M, Args extends unknown[]> {
  /** The latest messages, the oldest first. */
  messages: readonly M[]
  /** Whether the server has the subscription. */
  ready: boolean
  /** Why it has not, or which message was not valid. */
  error: unknown
  publish(...args: Args): Promise<PublishResult>
}

/** Number of messages or events that a hook keeps. */
const KEPT_MAX = 100

/** Subscribes to a topic while the component is shown. `null` subscribes to nothing. */
export function useTopic(topics: Topics, topic: string | null, options?: UseTopicOptions<Message>): UsedTopic<Message, [Outgoing, PublishOptions?]>
/** The same with messages of one definition: `useTopic(topics, "chat:1", Said)`. */
export function useTopic<T extends string, S extends StandardSchema>(
  topics: Topics,
  topic: string | null,
  definition: MessageDefinition<T, S>,
  options?: UseTopicOptions<Message<OutputOf<S>, T>>,
): UsedTopic<Message<OutputOf<S>, T>, [InputOf<S>, PublishOptions?]>
export function useTopic(topics: Topics, topic: string | null, ...rest: unknown[]): UsedTopic<Message, [any, PublishOptions?]> {
  const definition = rest[0] && "schema" in (rest[0] as object) ? (rest.shift() as MessageDefinition) : undefined
  const options = (rest[0] ?? {}) as UseTopicOptions<Message>
  const latest = useLatest(options)
  const [state, setState] = useState<{ messages: readonly Message[]; ready: boolean; error: unknown }>(nothing)

  useEffect(() => {
    if (topic === null) return
    let current = true
    const change = (next: (state: { messages: readonly Message[]; ready: boolean; error: unknown }) => typeof state) => {
      if (current) setState(next)
    }
    const handlers = {
      message(message: Message) {
        change(state => ({ ...state, messages: [...state.messages, message].slice(-(latest.current.max ?? KEPT_MAX)) }))
        return latest.current.onMessage?.(message)
      },
      restored: (restored: Restored) => latest.current.onRestored?.(restored),
      error: (error: unknown) => change(state => ({ ...state, error })),
    }
    const subscription = definition ? topics.listen(topic, definition, handlers as never) : topics.listen(topic, handlers)
    subscription.ready.then(
      () => change(state => ({ ...state, ready: true, error: undefined })),
      (error: unknown) => change(state => ({ ...state, ready: false, error })),
    )
    return () => {
      current = false
      subscription.close()
    }
  }, [topics, topic, definition, latest])

  // Another topic begins with nothing; effects of one that is shown again at once keep what was heard.
  const [shown, setShown] = useState(topic)
  if (shown !== topic) {
    setShown(topic)
    setState(nothing)
  }
  const publish = useCallback(
    (message: unknown, options?: PublishOptions): Promise<PublishResult> => {
      if (topic === null) return Promise.resolve({ ok: false, error: "STATE", retryable: false, cause: "there is no topic" })
      return definition ? topics.publish(topic, definition, message, options) : topics.publish(topic, message as Outgoing, options)
    },
    [topics, topic, definition],
  )
  return { ...state, publish }
}

const nothing = { messages: [], ready: false, error: undefined }

/** Who is present on a topic, while the component makes this client present, with information about it. */
export function usePresence(topics: Topics, topic: string | null, info?: unknown): { members: readonly Member[]; ready: boolean; error: unknown } {
  const [state, setState] = useState<{ members: readonly Member[]; ready: boolean; error: unknown }>(nobody)
  const text = JSON.stringify(info)

  useEffect(() => {
    if (topic === null) return
    const leaving = new AbortController()
    const change = (next: (state: { members: readonly Member[]; ready: boolean; error: unknown }) => typeof state) => {
      if (!leaving.signal.aborted) setState(next)
    }
    const fetch = () =>
      topics.presence(topic, { signal: leaving.signal }).then(
        ({ members }) => change(() => ({ members, ready: true, error: undefined })),
        (error: unknown) => change(state => ({ ...state, error })),
      )
    const subscription = topics.listen(
      topic,
      {
        // Who came and went while this client was away is in nobody's message.
        restored: fetch,
        presence: ({ kind, member }) =>
          change(state => {
            const others = state.members.filter(({ id }) => id !== member.id)
            return { ...state, members: kind === "join" ? [...others, member] : others }
          }),
        error: error => change(state => ({ ...state, error })),
      },
      { presence: text === undefined ? true : { info: JSON.parse(text) as unknown } },
    )
    subscription.ready.then(fetch, (error: unknown) => change(state => ({ ...state, error })))
    return () => {
      leaving.abort()
      subscription.close()
      setState(nobody)
    }
  }, [topics, topic, text])
  return state
}

const nobody = { members: [], ready: false, error: undefined }
