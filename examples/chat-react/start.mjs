// Starts the server and the page: `node examples/chat-react/start.mjs`, after `npm install` in clients/typescript.
import { startServer, tidings } from "../tidings.mjs"
import { serve } from "./serve.mjs"

const { url } = await startServer(tidings())
const site = await serve(Number(process.env.PORT ?? 8000))
console.log(`open http://127.0.0.1:${site.address().port}/?${new URLSearchParams({ server: url, room: "lobby", name: "ann" })}`)
