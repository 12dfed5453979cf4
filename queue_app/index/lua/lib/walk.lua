-- Walks over the queues of a call, so that thousands of queues take few calls: ARGV[from] is the cursor in the first of them,
-- '0' at its beginning, and the queues follow.
--
-- look(queue, cursor) looks at a part of a queue; it returns the next cursor, '0' when the queue is done, and its effort. The
-- walk ends when the efforts reach `budget`. Returns how many queues are done, and the cursor in the next one.
local function walk(from, budget, look)
  local at, cursor, spent = from + 1, ARGV[from], 0
  while at <= #ARGV and spent < budget do
    local effort
    cursor, effort = look(ARGV[at], cursor)
    spent = spent + effort
    if cursor == '0' then at = at + 1 end
  end
  return at - from - 1, cursor
end
