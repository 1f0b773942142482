// Starts everything: a PostgreSQL server (or `DATABASE_URL`), tidings beside it, and the application, which is this program:
// `node examples/todo/start.mjs`, after `npm install` in clients/typescript.
import { execFileSync } from "node:child_process"
import { fileURLToPath } from "node:url"
import { require, servePage } from "../page.mjs"
import { startServer, tidings } from "../tidings.mjs"
import { startPostgres } from "./database.mjs"

const database = process.env.DATABASE_URL ?? (await startPostgres())
const binary = tidings()
const sql = require("postgres")(database, { onnotice: () => {} })

await sql`CREATE TABLE IF NOT EXISTS todo (
  id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  title text NOT NULL,
  done boolean NOT NULL DEFAULT false,
  created timestamptz NOT NULL DEFAULT clock_timestamp()
)`
// From here on tidings is told of every change of the table, whoever makes it.
execFileSync(binary, ["entities", "install", "--database-url", database])
execFileSync(binary, ["entities", "attach", "todo", "--code", "todo", "--key", "id", "--database-url", database])
const server = await startServer(binary, { environment: { TIDINGS_ENTITIES_DATABASE_URL: database } })

/** Longest title, in characters, and longest body of a request, in bytes. */
const [TITLE_MAX, BODY_MAX] = [200, 4096]

class Refused extends Error {
  constructor(status, message) {
    super(message)
    this.status = status
  }
}

async function bodyOf(request) {
  let text = ""
  for await (const chunk of request) if ((text += chunk).length > BODY_MAX) throw new Refused(413, "the body is too long")
  try {
    return JSON.parse(text)
  } catch {
    throw new Refused(400, "the body is not JSON")
  }
}

function titleOf({ title }) {
  if (typeof title !== "string" || !title.trim() || title.length > TITLE_MAX) throw new Refused(400, `a title has 1 to ${TITLE_MAX} characters`)
  return title.trim()
}

/** The application's own interface: rows of the table. It does not know of tidings, which hears of changes from the database. */
async function answer(method, id, request) {
  if (method === "GET") return sql`SELECT id, title, done FROM todo ORDER BY created`
  if (method === "POST") return sql`INSERT INTO todo (title) VALUES (${titleOf(await bodyOf(request))}) RETURNING id`
  if (!/^[0-9a-f-]{36}$/.test(id)) throw new Refused(404, "there is no such thing to do")
  if (method === "DELETE") return sql`DELETE FROM todo WHERE id = ${id}`
  if (method === "PATCH") return sql`UPDATE todo SET done = ${Boolean((await bodyOf(request)).done)} WHERE id = ${id}`
  throw new Refused(405, `${method} is not served`)
}

async function handle(request, response) {
  const { pathname } = new URL(request.url, "http://localhost")
  if (pathname === "/config") {
    response.setHeader("content-type", "application/json")
    response.end(JSON.stringify({ server: server.url }))
    return true
  }
  const [, id = ""] = /^\/todos(?:\/([^/]*))?$/.exec(pathname) ?? []
  if (!pathname.startsWith("/todos")) return false
  try {
    const rows = await answer(request.method, id, request)
    response.setHeader("content-type", "application/json")
    response.end(JSON.stringify(rows))
  } catch (error) {
    if (!(error instanceof Refused)) throw error
    response.writeHead(error.status).end(error.message)
  }
  return true
}

const site = await servePage(fileURLToPath(new URL(".", import.meta.url)), Number(process.env.PORT ?? 8001), handle)
console.log(`the database is ${database}`)
console.log(`tidings is process ${server.pid} on ${server.url}`)
console.log(`open http://127.0.0.1:${site.address().port}/`)
