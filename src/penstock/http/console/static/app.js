// The console. To add a page, write pages/NAME.js, which calls `page({…})` of lib/pages.js, and import it here.

import { start } from "./lib/shell.js";
import "./pages/overview.js";
import "./pages/streams.js";
import "./pages/state.js";
import "./pages/tables.js";
import "./pages/subscriptions.js";
import "./pages/peers.js";
import "./pages/pipelines.js";
import "./pages/cluster.js";
import "./pages/access.js";
import "./pages/stream.js";

start();
