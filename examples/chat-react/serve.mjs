// Serves the page alone: `node examples/chat-react/serve.mjs`, after `npm install` in clients/typescript.
import { fileURLToPath } from "node:url"
import { servePage } from "../page.mjs"

/** Serves the page on a port of the loopback interface; 0 takes a free one. */
export const serve = port => servePage(fileURLToPath(new URL(".", import.meta.url)), port)

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const site = await serve(Number(process.env.PORT ?? 8000))
  console.log(`http://127.0.0.1:${site.address().port}/?room=lobby&name=ann`)
}
