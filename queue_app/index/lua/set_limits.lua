-- Copies the limits of gates from their rows: of everything, queues, task types, and keys or families of keys. Most of them have
-- not changed.
--
-- ARGV     gate ('a', 'q:queue', 't:type' or 'k:key'), '1' when a row has limits for it, number of the texts that follow, and
--          these: field, value, ... as in the hash; shares of a fair queue as 'share:name'; then the next gate. At most 200 gates
-- Returns  {number of gates done, how many of them changed, what the caller must do next}: 'count': the leases must be counted
--          for the next gate (count_leases.lua), and its limits copied again; 'forget': the leases of the last gate must be
--          forgotten (count_leases.lua); 'open': gates may have opened (refill.lua); '' for nothing
--
-- Copies the limits of one gate after another, and stops early where that takes long.
--
-- A cap of a type, of keys or of users counts what runs already. Up to 500 leases are counted at once. Of more, the limits take
-- effect when all have been counted; leases that begin meanwhile are counted by their claims.
--
-- When a queue with tasks starts or stops having lanes for each user, its tasks need other lanes; with another order they need
-- other places. Claims are then refused until the index is rebuilt.
--! include limit_copies
local BUDGET = 350  -- of a call, in steps of about 5 us
local COMPARED, CHANGED = 2, 3  -- steps that a gate takes; one more for each profile if a queue has changed
local at, done, changes, steps, next_step = 1, 0, 0, 0, ''
while at <= #ARGV and steps < BUDGET and next_step == '' do
  local g, ends, after, shares = ARGV[at], at + 2 + ARGV[at + 2], {}, {}
  for i = at + 3, ends, 2 do
    local share = string.match(ARGV[i], '^share:(.*)$')
    if share then shares[share] = ARGV[i + 1] else after[ARGV[i]] = ARGV[i + 1] end
  end
  local is_changed
  is_changed, next_step = copy_limits(g, ARGV[at + 1] == '1', after, shares)
  steps = steps + COMPARED
  if is_changed then
    changes = changes + 1
    steps = steps + CHANGED + (string.sub(g, 1, 1) == 'q' and #profiles() or 0)
  end
  if next_step ~= 'count' then done = done + 1 end
  at = ends + 1
end
if changes > 0 then
  refresh_touched()
  watch_refills()
  wake_any()
end
return { done, changes, next_step }
