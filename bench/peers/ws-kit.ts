// ws-kit on Bun with its adapter in memory, wired as in its chat example. JOIN and LEAVE a topic are answered with
// TOPIC_JOINED and TOPIC_LEFT; SAY sends HEARD to the topic.
import { createBunHandler } from "@ws-kit/bun"
import { memoryPubSub } from "@ws-kit/memory"
import { createRouter, message, withPubSub, withZod, z } from "@ws-kit/zod"

const topic = { topic: z.string() }
const Join = message("JOIN", topic)
const Joined = message("TOPIC_JOINED", topic)
const Leave = message("LEAVE", topic)
const Left = message("TOPIC_LEFT", topic)
const Say = message("SAY", { topic: z.string(), m: z.string() })
const Heard = message("HEARD", { m: z.string() })

const router = createRouter()
  .plugin(withZod())
  .plugin(withPubSub({ adapter: memoryPubSub() }))
router.on(Join, async (ctx) => {
  await ctx.topics.subscribe(ctx.payload.topic)
  ctx.send(Joined, { topic: ctx.payload.topic })
})
router.on(Leave, async (ctx) => {
  await ctx.topics.unsubscribe(ctx.payload.topic)
  ctx.send(Left, { topic: ctx.payload.topic })
})
router.on(Say, async (ctx) => {
  await ctx.publish(ctx.payload.topic, Heard, { m: ctx.payload.m })
})
router.onError((error: unknown) => console.error(error))
await (router as any).pubsub.init()

const { fetch, websocket } = createBunHandler(router as any)
Bun.serve({
  hostname: "127.0.0.1",
  port: Number(process.env.PORT),
  fetch: (request, server) => fetch(request, server as any),
  websocket: { ...websocket, perMessageDeflate: false } as any,
})
