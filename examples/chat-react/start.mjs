// Starts the server and the page: `node examples/chat-react/start.mjs`, after `npm install` in clients/typescript.
import { startServer, tidings } from "../tidings.mjs"
import { serve } from "./serve.mjs"

const server = await startServer(tidings())
const site = await serve(Number(process.env.PORT ?? 8000))
console.log(`tidings is process ${server.pid} on ${server.url}`)
console.log(`open http://127.0.0.1:${site.address().port}/?${new URLSearchParams({ server: server.url, room: "lobby", name: "ann" })}`)
