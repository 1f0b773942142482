/** What the types promise. Compiled, never run; `@ts-expect-error` fails where there is none. */
import { expectTypeOf } from "expect-type"
import * as v from "valibot"
import { z } from "zod"
import { Entities, type Invalidation, type Resync } from "../src/entities/index.js"
import { verify, type Delivery } from "../src/hooks/index.js"
import { useTopic } from "../src/react/index.js"
import { Rooms, type RoomEvent } from "../src/rooms/index.js"
import { Sessions, type Envelope } from "../src/sessions/index.js"
import { message, topic, Topics, type ConnectionState, type InputOf, type Message, type OutputOf, type PublishErrorCode, type PublishResult } from "../src/topics/index.js"

declare const topics: Topics

// Topics are a read-only set.
expectTypeOf(topics).toExtend<ReadonlySet<string>>()
// @ts-expect-error the set changes by subscribe and set
topics.add("x")

// Messages have the types of their schema: what goes in, and what comes out.
const Said = message("SAID", z.object({ text: z.string(), at: z.string().transform(Number) }))
expectTypeOf(Said.type).toEqualTypeOf<"SAID">()
expectTypeOf<InputOf<typeof Said.schema>>().toEqualTypeOf<{ text: string; at: string }>()
expectTypeOf<OutputOf<typeof Said.schema>>().toEqualTypeOf<{ text: string; at: number }>()
topics.listen("a", Said, each => expectTypeOf(each).toEqualTypeOf<Message<{ text: string; at: number }, "SAID">>())
topics.listen("a", each => expectTypeOf(each).toEqualTypeOf<Message>())
expectTypeOf(topics.publish("a", Said, { text: "x", at: "1" })).toEqualTypeOf<Promise<PublishResult>>()
// @ts-expect-error a member is missing
void topics.publish("a", Said, { text: "x" })
// @ts-expect-error a message without a type
void topics.publish("a", { payload: 1 })

const Valid = message("VALID", v.object({ n: v.number() }))
topics.listen("a", Valid, { message: ({ payload }) => expectTypeOf(payload).toEqualTypeOf<{ n: number }>() })

const Room = topic("room", z.object({ id: z.string() }), ({ id }) => `room:${id}`)
expectTypeOf(Room.make).parameters.toEqualTypeOf<[{ id: string }]>()
expectTypeOf(Room.parse("room:1")).toEqualTypeOf<{ id: string } | undefined>()
// @ts-expect-error not the arguments of this topic
Room.make({ room: 1 })

// A result tells by `ok` what else it has.
declare const result: PublishResult
if (result.ok) expectTypeOf(result.matched).toEqualTypeOf<number | undefined>()
else expectTypeOf(result.error).toEqualTypeOf<PublishErrorCode>()

// A state tells by `status` what else it has.
declare const state: ConnectionState
if (state.status === "waiting") expectTypeOf(state.retryAt).toBeNumber()
// @ts-expect-error only while waiting
void (state.status === "connected" && state.retryAt)

expectTypeOf(new Rooms({ server: "" }).room("r").events()).toExtend<AsyncIterable<RoomEvent>>()
new Entities({ server: "" }).watch("task", "all", each => expectTypeOf(each).toEqualTypeOf<Invalidation>())
expectTypeOf(new Entities({ server: "" }).changes("task", ["1"])).toExtend<AsyncIterable<Invalidation | Resync>>()
expectTypeOf(new Sessions({ server: "" }).session("s").messages()).toExtend<AsyncIterable<unknown>>()
new Sessions({ server: "" }).session("s").follow({ streams: { a: (each: Envelope<number>) => each.payload } })
expectTypeOf(verify<{ amount: number }>({} as Request, "")).toEqualTypeOf<Promise<Delivery<{ amount: number }>>>()

export function Component() {
  const { messages, publish } = useTopic(topics, "a", Said)
  expectTypeOf(messages).toEqualTypeOf<readonly Message<{ text: string; at: number }, "SAID">[]>()
  // @ts-expect-error a member is missing
  void publish({ text: "x" })
  // @ts-expect-error the hook needs a client
  useTopic("a")
}
