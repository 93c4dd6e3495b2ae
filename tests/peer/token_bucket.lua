-- Token buckets: takes from all buckets or from none.
-- KEYS: the buckets. ARGV: of each limit its capacity, its refill a second, and the amount.
-- Returns 0 if it took, otherwise the milliseconds until it could.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local limits = #ARGV / 3
local buckets, wait = {}, 0
for k, key in ipairs(KEYS) do
  local stored = redis.call('HGETALL', key)
  local bucket = {}
  for i = 1, #stored, 2 do bucket[stored[i]] = tonumber(stored[i + 1]) end
  local passed = now - (bucket.at or now)
  for i = 1, limits do
    local capacity, rate, amount = tonumber(ARGV[3 * i - 2]), tonumber(ARGV[3 * i - 1]), tonumber(ARGV[3 * i])
    local name = 'b' .. i
    local balance = math.min(capacity, (bucket[name] or capacity) + passed * rate / 1000)
    bucket[name] = balance - amount
    if amount > 0 and balance < amount then
      wait = math.max(wait, math.ceil((amount - balance) * 1000 / rate))
    end
  end
  buckets[k] = bucket
end
if wait > 0 then return wait end
for k, key in ipairs(KEYS) do
  local fields, empty_for = {'at', now}, 0
  for i = 1, limits do
    local name = 'b' .. i
    fields[#fields + 1], fields[#fields + 2] = name, string.format('%.17g', buckets[k][name])
    local capacity, rate = tonumber(ARGV[3 * i - 2]), tonumber(ARGV[3 * i - 1])
    empty_for = math.max(empty_for, (capacity - buckets[k][name]) * 1000 / rate)
  end
  redis.call('HSET', key, unpack(fields))
  -- A full bucket is one that is not there.
  redis.call('PEXPIRE', key, math.ceil(empty_for) + 1000)
end
return 0
