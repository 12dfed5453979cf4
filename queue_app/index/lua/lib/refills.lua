--! include wake
-- Gates that open by time, and gates that an edit of a family of keys, or of the users of a queue, may have opened. An edit can
-- concern thousands of gates, so claims look at them in steps, as if their refill were due.
local AT_ONCE = 100  -- gates in one call; half as many whose refills are due, as a claim then takes tasks from behind them

-- Looks at a part of the gates whose names begin with `prefix`.
local function refresh_family(prefix, cursor)
  local pattern = string.gsub(prefix, '[*?%[%]\\^]', '\\%0') .. '*'
  local page = redis.call('SSCAN', GATES, cursor, 'MATCH', pattern, 'COUNT', AT_ONCE)
  for _, g in ipairs(page[2]) do refresh_gate(g) end
  if page[1] ~= '0' then redis.call('ZADD', REFILLS, '0', 's:' .. page[1] .. ':' .. prefix) end
end

-- Puts the gates whose refill is due back into the heads, some in one call; returns the instant (us) of the next refill, if any,
-- which has passed when there are more.
local function apply_refills()
  local at = select(2, first_of(REFILLS))
  if not at or tonumber(at) > now_us() then return at end
  for _, g in ipairs(redis.call('ZRANGEBYSCORE', REFILLS, '-inf', whole(now_us()), 'LIMIT', 0, AT_ONCE / 2)) do
    redis.call('ZREM', REFILLS, g)
    local cursor, prefix = string.match(g, '^s:(%d+):(.*)$')
    if cursor then
      refresh_family(prefix, cursor)
      break
    elseif string.sub(g, 1, 1) == 'q' then
      refresh_queue_everywhere(string.sub(g, 3))
    else
      refresh_gate(g)
    end
  end
  refresh_touched()
  return select(2, first_of(REFILLS))
end

-- Makes one idle worker of each profile wait for the next refill. Wakes one in a profile where no worker waits, or where one
-- waits for a later refill (which may only look later, because the server's clock stepped back). Returns the ms that
-- `worker`, the caller, must wait, or ''.
local function watch_refills(profile, worker, is_idle)
  local _, at = first_of(REFILLS)
  if not at then return '' end
  local wait, left = '', math.max(0, math.ceil((tonumber(at) - now_us()) / 1000))
  if profile then
    local holder = redis.call('GET', watch_key(profile))
    if is_idle and (not holder or holder == worker) then
      wait = string.format('%d', left)
      redis.call('SET', watch_key(profile), worker, 'PX', left + 1000)
    elseif holder == worker then
      redis.call('DEL', watch_key(profile))
    end
  end
  for _, p in ipairs(profiles()) do
    local lasts = redis.call('PTTL', watch_key(p))
    if lasts == -1 or lasts > left + 1000 then redis.call('DEL', watch_key(p)) end
    if lasts < 0 or lasts > left + 1000 then wake_one(p) end
  end
  return wait
end
