/** Follows a room by each wire, and shows what it hears, as text. */
import { inMemory, Rooms, type Wire } from "../../src/rooms/index.js"
import { verify } from "../../src/hooks/index.js"

const parameters = new URLSearchParams(location.search)
const room = new Rooms({ server: parameters.get("server")!, project: "p" }).room("lobby")

for (const wire of ["sse", "websocket", "eventsource"] satisfies Wire[]) {
  const line = document.createElement("p")
  line.id = wire
  document.body.append(line)
  const following = room.follow(
    {
      event: ({ payload }) => void (line.textContent += ` ${(payload as any).messageView.id}`),
      missed: ({ name }) => void (line.textContent += ` ${name}`),
      state: ({ status }) => (line.dataset.state = status),
    },
    { wire, cursors: inMemory(parameters.get("cursor") ?? undefined) },
  )
  following.done.catch((error: Error) => (line.textContent += ` ${error.message}`))
}

// WebCrypto is the same in a browser.
void verify({ headers: { "webhook-id": "m", "webhook-timestamp": "1", "webhook-signature": "v1,AAAA" }, body: "{}" }, "whsec_AAAA", { now: 1_000 }).catch(
  (error: { code: string }) => (document.body.dataset.verify = error.code),
)
