-- Appends lifecycle events to the capped event stream, and adds to the counters of the cluster.
--
-- ARGV[1]  approximate number of entries that the stream keeps
-- ARGV[2]  JSON: list of runs {occasion, ids}; an occasion is {event, task_type, queue, priority, user,
--          attempt, worker, status, details}, details are further fields {name, value, ...};
--          each of the ids is a text with one or more ids, for one entry; at most 500 ids in all
-- ARGV[3..] name, number, name, number, ...: what to add to the counters
-- Returns  how many entries were appended
--
-- An entry that the server refuses (out of memory, not permitted) is left out: events are best effort, and the caller
-- could not use the error.
--! include keys
for i = 3, #ARGV, 2 do add_to(ARGV[i], ARGV[i + 1]) end
local t = redis.call('TIME')
local at = whole(t[1] * 1000 + math.floor(t[2] / 1000))
local appended = 0
for _, run in ipairs(cjson.decode(ARGV[2])) do
  local o = run[1]
  for _, ids in ipairs(run[2]) do
    local entry = redis.pcall('XADD', EVENTS, '*', 'event', o[1], 'task_id', ids, 'task_type', o[2], 'queue', o[3],
      'priority', o[4], 'user', o[5], 'attempt', o[6], 'worker', o[7], 'status', o[8], 'at', at, unpack(o[9]))
    if type(entry) == 'string' then appended = appended + 1 end
  end
end
if appended > 0 then redis.pcall('XTRIM', EVENTS, 'MAXLEN', '~', ARGV[1]) end
return appended
