// Bun by itself: whoever connects to /subscribe/TOPIC hears what is sent on a WebSocket to /publish/TOPIC, or by POST. A
// subscriber that sends +TOPIC or -TOPIC is subscribed to that as well, or no longer, and is answered "done".
type Role = { publishes: boolean; topic: string }

const server = Bun.serve<Role>({
  hostname: "127.0.0.1",
  port: Number(process.env.PORT),
  async fetch(request, server) {
    const { pathname } = new URL(request.url)
    const [role, topic] = pathname.slice(1).split("/")
    if (!topic || (role !== "publish" && role !== "subscribe")) return new Response(null, { status: 404 })
    if (request.method === "POST") {
      server.publish(topic, await request.text())
      return new Response(null, { status: 204 })
    }
    if (server.upgrade(request, { data: { publishes: role === "publish", topic } })) return
    return new Response(null, { status: 426 })
  },
  websocket: {
    idleTimeout: 240,
    perMessageDeflate: false,
    backpressureLimit: 8 << 20,
    open(socket) {
      if (!socket.data.publishes) socket.subscribe(socket.data.topic)
    },
    message(socket, message) {
      if (socket.data.publishes) {
        server.publish(socket.data.topic, message)
        return
      }
      const text = String(message)
      if (text.startsWith("+")) socket.subscribe(text.slice(1))
      else socket.unsubscribe(text.slice(1))
      socket.send("done")
    },
  },
})
